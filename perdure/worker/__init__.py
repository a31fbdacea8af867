"""A worker process and its background jobs: the outbox relay, the reconciler, webhooks, audit heads, embeddings."""
