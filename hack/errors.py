"""The one error that the tools under `hack` raise on purpose."""


class ToolError(RuntimeError):
    """A server, cluster or image could not be started or built; the message says which, and where its log is."""
