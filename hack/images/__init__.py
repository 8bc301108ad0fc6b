"""Container images of the project: built by Docker where it works, otherwise by buildah from bases of our own."""
