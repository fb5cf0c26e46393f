package fencepost;

/**
 * What the driver's Python side implements (py4j) to be told, once per epoch, what the tasks staged.
 * It must never be called from a task: there is no Python behind it outside the driver.
 */
public interface Epochs {
  /**
   * Votes, decides and commits one epoch; returning means "Spark may write commits/N".
   * Any exception fails the query, and the answer itself is ignored.
   */
  String epoch(long epoch, String json);
}
