"""The codecs of npm busmq's federation: packets, calls, creation messages, compression (protocol
chapter 5). Values without a socket.
"""
