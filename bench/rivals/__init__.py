"""Rivals that are compiled apart from the package, on the machine that runs the benchmark."""
