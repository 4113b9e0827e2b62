"""A stock Flower app: who is on the picture?"""
