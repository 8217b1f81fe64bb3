"""AdminClient: topics, groups, offsets, messages and brokers, for those who look after them."""
