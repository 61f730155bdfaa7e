"""Ray: places, starts, watches and stops the verifier ranks, and speaks HTTP; nothing per step."""
