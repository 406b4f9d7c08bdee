"""What several tests share: brokers and workers beside them, clients, a coordinator at a desk."""
