"""Deployment: the image, and small additional programs."""
