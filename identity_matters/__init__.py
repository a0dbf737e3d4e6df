"""Identity Matters: Hardt & Ma (arXiv 1611.04231) reproduced, checked and extended in JAX."""
