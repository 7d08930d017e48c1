"""THE C++ PROGRAM FOR CPUS: a decoder as a list of operations, its packed weights, and the library that runs them."""
