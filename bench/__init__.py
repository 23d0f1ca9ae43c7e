"""Benchmarks of torch_gpuprims beside PyTorch and the rivals that can be called: python -m bench topk."""
