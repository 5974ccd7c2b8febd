"""Laws of tiers: what one memory evicts, the next receives."""
