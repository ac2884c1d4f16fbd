"""The cluster as a user sees it: jobs, their pods and their bundles, with the user's own rights."""
