"""Files for clusters: Serve, KubeRay, an image."""
