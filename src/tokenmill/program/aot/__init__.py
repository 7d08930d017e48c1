"""Program aot: layers compiled ahead of time into a package on disk, which is run without a compiler."""
