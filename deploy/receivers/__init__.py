"""Ready-made webhook receivers: small separate programs that need only Perdure's address and a secret."""
