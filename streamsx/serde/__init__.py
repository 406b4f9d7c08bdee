"""Conversion between bytes and values, as in Faust: two functions per codec, chosen once.

Pure: a codec knows types and names of serializers, never a topic or an app.
"""
