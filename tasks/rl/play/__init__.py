"""Acting in simulators: standardized states, policies, rollouts."""
