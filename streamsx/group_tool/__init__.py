"""A group as tools see it and speak to it: who is in it, who is asked to leave, what becomes of it.

It needs a broker and no way to the workers; a tool that speaks is a member for a moment.
"""
