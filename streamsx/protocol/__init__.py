"""Kafka protocol: conversion between bytes and values. Pure.

Contains requests and responses, record batches, the partitioner, error codes, and the metadata of
committed offsets. Not here: connections (`client`).
"""
