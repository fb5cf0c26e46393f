package fencepost;

import java.io.ByteArrayOutputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
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
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The text Spark is going to write to commits/N, read after the job of N and before that file exists.
 * It must never change what Spark itself will find: the one call it repeats is a maximum.
 *
 * <p>Follows MicroBatchExecution.markMicroBatchEnd of Spark 4.0 to 4.3 step by step. Spark 4.1 moved the classes of
 * streaming to other packages, and 4.2 changed some methods, so whatever differs is called by its name: one jar links
 * with all of them.
 */
public final class Snapshot {
  private static final String STREAMING = "org.apache.spark.sql.execution.streaming.";

  private Snapshot() {}

  /** By id, across sessions: Spark runs every query in a clone of the session that started it. */
  public static String text(String queryId) {
    Map<?, ?> active = (Map<?, ?>) call(SparkSession.active().sharedState(), "activeStreamingQueries");
    Object engine = active.get(UUID.fromString(queryId));
    if (engine == null) {
      throw new IllegalStateException("no active streaming query has the id " + queryId);
    }
    return textOf(engine);
  }

  private static String textOf(Object engine) {
    if (!streaming("runtime", "MicroBatchExecution").isInstance(engine)) {
      throw new IllegalStateException("only micro-batch queries have a snapshot, this is a "
          + engine.getClass().getName());
    }
    Object batch = call(engine, "getLatestExecutionContext");
    SparkPlan plan = ((QueryExecution) call(batch, "executionPlan")).executedPlan();
    Object watermark = call(engine, "watermarkTracker");
    call(watermark, "updateWatermark", plan);
    SQLConf conf = conf(engine, "sparkSessionForStream");
    refuseSinkEvolution(conf(engine, "sparkSession"));
    Option<Object> ids = keepsIds(conf)
        ? Option.apply(stateIds(plan, (Long) call(batch, "batchId")))
        : Option.empty();
    Object log = call(engine, "commitLog");
    Object metadata = metadata(log, batch, conf, call(watermark, "currentWatermark"), ids);
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    call(log, "serialize", metadata, out);
    return out.toString(StandardCharsets.UTF_8);
  }

  private static SQLConf conf(Object engine, String session) {
    return ((SparkSession) call(engine, session)).sessionState().conf();
  }

  /** Spark 4.2 brought it. */
  private static void refuseSinkEvolution(SQLConf conf) {
    if (has(conf, "enableStreamingSinkEvolution") && (Boolean) call(conf, "enableStreamingSinkEvolution")) {
      throw new IllegalStateException("unsupported_commit_log: sink evolution writes version 3");
    }
  }

  private static boolean keepsIds(SQLConf conf) {
    Class<?> companion = streaming("operators.stateful", "StatefulOperatorStateInfo$");
    return (Boolean) call(module(companion), "enableStateStoreCheckpointIds", conf);
  }

  /** Up to 4.1 there is one kind of metadata, and the log itself knows its version. */
  private static Object metadata(Object log, Object batch, SQLConf conf, Object watermark, Option<Object> ids) {
    if (!has(log, "createMetadata")) {
      return call(module(streaming("checkpointing", "CommitMetadata$")), "apply", watermark, ids);
    }
    Object sinks = call(log, "createMetadata$default$3");
    return call(log, "createMetadata", watermark, ids, sinks, version(log, batch, conf));
  }

  /** Spark 4.3 keeps the version a checkpoint already has; 4.2 takes it from the log's default. */
  private static Object version(Object log, Object batch, SQLConf conf) {
    if (!has(batch, "commitLogFormatVersionOpt")) {
      return call(log, "defaultVersion");
    }
    Option<?> known = (Option<?>) call(batch, "commitLogFormatVersionOpt");
    return known.isDefined() ? known.get() : call(conf, "streamingCommitLogFormatVersion");
  }

  private static scala.collection.immutable.Map<Object, String[][]> stateIds(
      SparkPlan plan, long epoch) {
    // Spark's own map is a mutable hash map too; the order of the operators in the text follows it
    scala.collection.mutable.HashMap<Object, String[][]> all =
        new scala.collection.mutable.HashMap<>();
    for (SparkPlan operator : stateful(plan)) {
      long id = (Long) call(((Option<?>) call(operator, "stateInfo")).get(), "operatorId");
      refuseSeveralIds(operator, id);
      List<String[]> perPartition = new ArrayList<>();
      for (Object info : (Object[]) call(operator, "getStateStoreCheckpointInfo")) {
        long version = (Long) call(info, "batchVersion");
        if (version != epoch + 1) {
          throw new IllegalStateException("ambiguous_snapshot: operator " + id + " holds version "
              + version + " after epoch " + epoch);
        }
        perPartition.add(ids(info));
      }
      all.put(id, perPartition.toArray(new String[0][]));
    }
    return scala.collection.immutable.Map.from(all);
  }

  /** Spark would silently take the first; which attempt's rows we hold is then unknown. */
  private static void refuseSeveralIds(SparkPlan operator, long id) {
    Map<Object, String[]> seen = new HashMap<>();
    AccumulatorV2<?, ?> told = (AccumulatorV2<?, ?>) call(operator, "checkpointInfoAccumulator");
    for (Object info : (List<?>) told.value()) {
      Object partition = call(info, "partitionId");
      String[] ids = ids(info);
      String[] earlier = seen.putIfAbsent(partition, ids);
      if (earlier != null && !Arrays.equals(earlier, ids)) {
        throw new IllegalStateException("ambiguous_snapshot: operator " + id + ", partition "
            + partition + " has several state ids, so a task ran more than once");
      }
    }
  }

  private static String[] ids(Object info) {
    return (String[]) ((Option<?>) call(info, "stateStoreCkptId")).get();
  }

  private static List<SparkPlan> stateful(SparkPlan plan) {
    Class<?> writer = streaming("operators.stateful", "StateStoreWriter");
    List<SparkPlan> found = new ArrayList<>();
    Deque<SparkPlan> open = new ArrayDeque<>(List.of(plan));
    while (!open.isEmpty()) {
      SparkPlan node = open.pop();
      if (writer.isInstance(node)) {
        found.add(node);
      }
      CollectionConverters.asJava(node.children()).forEach(open::add);
    }
    return found;
  }

  /** A class of Spark's streaming: in a package of its kind from 4.1 on, and all in one in 4.0. */
  private static Class<?> streaming(String kind, String name) {
    ClassLoader loader = SparkSession.class.getClassLoader();
    try {
      return Class.forName(STREAMING + kind + "." + name, true, loader);
    } catch (ClassNotFoundException spark40) {
      try {
        return Class.forName(STREAMING + name, true, loader);
      } catch (ClassNotFoundException e) {
        throw new IllegalStateException("this Spark version is not supported", e);
      }
    }
  }

  private static Object module(Class<?> companion) {
    try {
      return companion.getField("MODULE$").get(null);
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException("this Spark version is not supported", e);
    }
  }

  private static boolean has(Object target, String name) {
    return Arrays.stream(target.getClass().getMethods()).anyMatch(method -> method.getName().equals(name));
  }

  /** What Scala keeps within its packages is public to Java; an error of Spark's own comes out as it is. */
  private static Object call(Object target, String name, Object... arguments) {
    for (Method method : target.getClass().getMethods()) {
      if (method.getName().equals(name) && takes(method, arguments)) {
        try {
          method.setAccessible(true); // the class itself may be private
          return method.invoke(target, arguments);
        } catch (InvocationTargetException e) {
          throw Snapshot.<RuntimeException>sneaky(e.getCause());
        } catch (IllegalAccessException e) {
          throw new IllegalStateException("this Spark version is not supported", e);
        }
      }
    }
    throw new IllegalStateException("this Spark version is not supported: " + target.getClass().getName()
        + " has no " + name);
  }

  private static boolean takes(Method method, Object[] arguments) {
    Class<?>[] wanted = method.getParameterTypes();
    if (wanted.length != arguments.length) {
      return false;
    }
    for (int index = 0; index < wanted.length; index++) {
      if (!wanted[index].isPrimitive() && !wanted[index].isInstance(arguments[index])) {
        return false;
      }
    }
    return true;
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E sneaky(Throwable error) throws E {
    throw (E) error;
  }
}
