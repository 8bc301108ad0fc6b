"""The main job end to end on a real cluster, told to a person: `make demo`, and `make up` for a cluster that stays.

`story` has the steps in their order, and the way back. It lets `setup` make what they need from `resources` (Kubernetes objects)
and `subscriptions` (customers), `charging` watch the charges and kill processes meanwhile (`faults`), and `verdict` judge what
the databases (`figures`), the audit and the provider say. `narrator` and `summary` print; `logbook` and `diagnosis` keep the rest
for a closer look. `site` is the demo's namespace of the cluster.
"""
