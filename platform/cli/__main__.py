"""`python -m retable.platform.cli`: the command `retable` where it is not installed."""

from retable.platform.cli.app import main

main()
