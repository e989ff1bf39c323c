"""Where the messages are: what a source and a sink ask of a queue, and Redis' answer. Federation serves the same to other data centres."""
