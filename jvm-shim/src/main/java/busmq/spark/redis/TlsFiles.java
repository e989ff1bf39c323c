package busmq.spark.redis;

/**
 * Paths of the PEM files with which TLS is checked. Null means the authorities that this Java
 * trusts, and no certificate of our own.
 */
record TlsFiles(String ca, String certificate, String key, boolean checkHostname) {}
