"""Program native, in C++ for CPUs: a decoder as a list of operations, its packed weights, and their library."""
