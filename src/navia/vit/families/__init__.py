"""The anatomy of each library's ViTs. One file per library, imported only when a model of it is met."""
