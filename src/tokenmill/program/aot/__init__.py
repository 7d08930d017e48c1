"""AHEAD OF TIME: layers compiled into a package on disk, and the program that runs one without a compiler."""
