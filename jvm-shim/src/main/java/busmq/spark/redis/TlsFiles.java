package busmq.spark.redis;

/** How TLS is checked: paths of PEM files. Null means the authorities that this Java trusts, and no certificate of our own. */
record TlsFiles(String ca, String certificate, String key, boolean checkHostname) {
}
