"""What developers and tests need around the product: real MySQL servers, a real cluster, images, a payment provider."""
