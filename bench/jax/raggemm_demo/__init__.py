"""Compares raggemm with the alternatives in JAX on CPU, on the experts of recorded mixture-of-experts models."""
