"""What an asyncio program holds: a bus and its live objects, shared with Node peers."""
