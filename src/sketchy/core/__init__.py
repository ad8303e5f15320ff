"""The math: pure functions on tensors, batched over leading dimensions; torch and stdlib only."""
