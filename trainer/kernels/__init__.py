"""Hand-written GPU kernels: fused layers, attention, and cuBLASLt products."""
