"""The objects of an asyncio program: a bus and its live objects, shared with Node peers."""
