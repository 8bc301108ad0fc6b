"""Two Java job queues on MySQL, beside ours on the same server in the same run."""
