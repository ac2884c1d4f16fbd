"""What crosses the wire between operator, evaluator and gym host. Three parties meet here and nowhere else:

- `plans`: what the operator tells a pod, in a variable of its environment;
- `mounts`: where the files of a pod lie;
- `endpoints`: what hosts, evaluator and operator ask each other over HTTP;
- `reports`: what a container says at its end, in its termination message.

Each port, path, mount point and message has its one definition there.
"""
