"""What concurrent clients did to a broker that is killed, recorded, and judged afterwards."""
