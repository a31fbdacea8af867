"""Users, sign-in, registration and erasure."""
