"""Ready receivers of notices: small programs of their own that need of Perdure its address and a secret."""
