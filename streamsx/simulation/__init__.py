"""Virtual time under asyncio: processes, threads and a network in one OS thread, from one seed."""
