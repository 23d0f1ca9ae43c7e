"""The reduction ladder: seven textbook steps beside PyTorch, cuBLAS, CUB and this library."""
