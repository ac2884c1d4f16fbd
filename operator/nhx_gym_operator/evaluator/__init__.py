"""What runs in nhx-tasks (and, beside Gym, in nhx-gym-tasks): stage, collect, score, report.

`__main__` starts it; `run` orders the parts; `collect` holds the two ways to get rollouts; everything
before and after collection is the same for both placements.
"""
