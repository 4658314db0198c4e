"""The command line: one file per command; arguments in, a call into the library, a table or JSON out."""
