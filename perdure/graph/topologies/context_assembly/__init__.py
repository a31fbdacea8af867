"""A safety check first, then the context, assembled in phases while another branch reads the tone, then the answer."""
