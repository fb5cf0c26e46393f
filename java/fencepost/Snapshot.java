package fencepost;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.streaming.checkpointing.CommitLog;
import org.apache.spark.sql.execution.streaming.checkpointing.CommitMetadataBase;
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOpStateStoreCheckpointInfo;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecutionContext;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.streaming.StreamingQuery;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The text Spark is going to write to commits/N, read after the job of N and before that file exists.
 * It must never change what Spark itself will find: the one call it repeats is a maximum.
 *
 * <p>Follows MicroBatchExecution.markMicroBatchEnd of Spark 4.2 and 4.3 step by step.
 */
public final class Snapshot {
  private Snapshot() {}

  /** By id, across sessions: Spark runs every query in a clone of the session that started it. */
  public static String text(String queryId) {
    StreamExecution query = SparkSession.active().sharedState().activeStreamingQueries()
        .get(UUID.fromString(queryId));
    if (query == null) {
      throw new IllegalStateException("no active streaming query has the id " + queryId);
    }
    return text(query);
  }

  public static String text(StreamingQuery query) {
    Object inner = query instanceof StreamingQueryWrapper w ? w.streamingQuery() : query;
    if (!(inner instanceof MicroBatchExecution engine)) {
      throw new IllegalStateException("only micro-batch queries have a snapshot, this is a "
          + inner.getClass().getName());
    }
    MicroBatchExecutionContext batch = (MicroBatchExecutionContext) engine.getLatestExecutionContext();
    SparkPlan plan = batch.executionPlan().executedPlan();
    engine.watermarkTracker().updateWatermark(plan);
    SQLConf conf = engine.sparkSessionForStream().sessionState().conf();
    if (engine.sparkSession().sessionState().conf().enableStreamingSinkEvolution()) {
      throw new IllegalStateException("unsupported_commit_log: sink evolution writes version 3");
    }
    Option<scala.collection.immutable.Map<Object, String[][]>> ids =
        StatefulOperatorStateInfo.enableStateStoreCheckpointIds(conf)
            ? Option.apply(stateIds(plan, batch.batchId()))
            : Option.empty();
    CommitLog log = engine.commitLog();
    CommitMetadataBase metadata = log.createMetadata(
        engine.watermarkTracker().currentWatermark(),
        ids,
        log.createMetadata$default$3(),
        version(log, batch, conf));
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    log.serialize(metadata, out);
    return out.toString(StandardCharsets.UTF_8);
  }

  /** Spark 4.3 keeps the version a checkpoint already has; 4.2 takes it from the log's default. */
  private static int version(CommitLog log, MicroBatchExecutionContext batch, SQLConf conf) {
    try {
      Option<Object> known = batch.commitLogFormatVersionOpt();
      return known.isDefined() ? (Integer) known.get() : conf.streamingCommitLogFormatVersion();
    } catch (NoSuchMethodError spark42) {
      try {
        return (Integer) CommitLog.class.getMethod("defaultVersion").invoke(log);
      } catch (ReflectiveOperationException e) {
        throw new IllegalStateException("this Spark version is not supported", e);
      }
    }
  }

  private static scala.collection.immutable.Map<Object, String[][]> stateIds(
      SparkPlan plan, long epoch) {
    // Spark's own map is a mutable hash map too; the order of the operators in the text follows it
    scala.collection.mutable.HashMap<Object, String[][]> all =
        new scala.collection.mutable.HashMap<>();
    for (StateStoreWriter operator : stateful(plan)) {
      long id = operator.stateInfo().get().operatorId();
      refuseSeveralIds(operator, id);
      List<String[]> perPartition = new ArrayList<>();
      for (StatefulOpStateStoreCheckpointInfo info : operator.getStateStoreCheckpointInfo()) {
        if (info.batchVersion() != epoch + 1) {
          throw new IllegalStateException("ambiguous_snapshot: operator " + id + " holds version "
              + info.batchVersion() + " after epoch " + epoch);
        }
        perPartition.add(info.stateStoreCkptId().get());
      }
      all.put(id, perPartition.toArray(new String[0][]));
    }
    return scala.collection.immutable.Map.from(all);
  }

  /** Spark would silently take the first; which attempt's rows we hold is then unknown. */
  private static void refuseSeveralIds(StateStoreWriter operator, long id) {
    Map<Integer, String[]> seen = new HashMap<>();
    for (StatefulOpStateStoreCheckpointInfo info : operator.checkpointInfoAccumulator().value()) {
      String[] ids = info.stateStoreCkptId().get();
      String[] earlier = seen.putIfAbsent(info.partitionId(), ids);
      if (earlier != null && !Arrays.equals(earlier, ids)) {
        throw new IllegalStateException("ambiguous_snapshot: operator " + id + ", partition "
            + info.partitionId() + " has several state ids, so a task ran more than once");
      }
    }
  }

  private static List<StateStoreWriter> stateful(SparkPlan plan) {
    List<StateStoreWriter> found = new ArrayList<>();
    Deque<SparkPlan> open = new ArrayDeque<>(List.of(plan));
    while (!open.isEmpty()) {
      SparkPlan node = open.pop();
      if (node instanceof StateStoreWriter operator) {
        found.add(operator);
      }
      CollectionConverters.asJava(node.children()).forEach(open::add);
    }
    return found;
  }
}
