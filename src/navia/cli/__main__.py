"""`python -m navia.cli` is the same as `navia`."""

from navia.cli.main import main

main()
