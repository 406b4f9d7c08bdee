"""Bytes <-> values, as Faust writes and reads them: two functions, chosen once per topic or table.

Pure: a codec knows types and names of serializers, never a topic or an app.
"""
