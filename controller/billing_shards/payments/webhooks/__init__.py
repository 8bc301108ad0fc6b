"""What providers tell us by themselves: stored first, then applied, once. See docs/webhooks.md."""
