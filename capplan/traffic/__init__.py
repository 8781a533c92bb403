"""Traffic: traces of requests, their profile, load shapes and draws."""
